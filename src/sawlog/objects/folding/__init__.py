"""What the fold does with the actions of brokers. `State` is the fold; each module here has the actions of one noun."""
