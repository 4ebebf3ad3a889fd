"""x"""


def fixtures():
    return []
