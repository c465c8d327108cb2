"""What is installed here, which fixes it needs, and what guards its buffers."""
