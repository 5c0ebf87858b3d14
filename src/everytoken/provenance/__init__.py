"""Where tokens came from: releases without text, their replay and verification, indexes from tokens to documents.

Every module is imported by its own name.
"""
