"""Consumer groups of the network: who is a member, who has which partitions, what they have committed."""
