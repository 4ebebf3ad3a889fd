"""A store on object storage as its brokers use it. Any number of brokers may serve it."""
