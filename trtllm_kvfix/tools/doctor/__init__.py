"""What is installed here, what of it needs mending, and what guards it."""
