"""Conversations become windows with a mask over what is learned."""
