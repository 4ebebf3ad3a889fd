"""A store on object storage, as its brokers use it; see `sawlog.topics.served`. Any number of brokers may serve it."""
