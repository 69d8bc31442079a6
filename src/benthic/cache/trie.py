"""The page trie: one node is one page of tokens whose entries are cached. (Signatures; the body follows.)"""


class PageNode:
    """One cached page."""
