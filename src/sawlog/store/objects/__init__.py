"""A store on object storage. Numbered commits are the only truth; everything else is a fold over them."""
