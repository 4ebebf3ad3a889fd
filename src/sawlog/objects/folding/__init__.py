"""What the fold does with actions. `State` is the fold; each module here has the actions of one noun."""
