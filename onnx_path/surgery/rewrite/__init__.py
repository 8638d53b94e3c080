"""Writing new nodes: drafts of MSDA nodes, their function bodies, and other element types."""
