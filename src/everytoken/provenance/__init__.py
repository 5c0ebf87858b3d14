"""Where tokens came from.

- `releases`: a corpus without its text; `verification`: whether a release, and streams, are what they say
- `replay`: the documents of a release again, from upstream
- `builds`: what differs between two
- `indexes`: from tokens to documents and back; `questions`: what they are asked
- `takedown`: documents that leave a corpus

Every module is imported by its own name.
"""
