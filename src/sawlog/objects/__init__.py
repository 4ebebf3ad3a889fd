"""A store on object storage: numbered commits are the only truth, and everything else is a fold over them."""
