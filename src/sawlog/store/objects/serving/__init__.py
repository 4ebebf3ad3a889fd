"""The broker's view of a store on object storage. Any number of brokers may serve it."""
