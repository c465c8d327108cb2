"""Admission order: where upstream adds sequences one by one, those that evict least go first (H3)."""
