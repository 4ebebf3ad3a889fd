"""A store on object storage. The numbered commits are the source of truth; the state is a fold over them."""
