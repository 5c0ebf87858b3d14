"""Where tokens came from: releases without text, their replay and verification, and indexes from tokens to documents and
back.

Every module is imported by its own name.
"""
