"""x"""
def fixtures():
    return []
