"""Redaction: secrets and personal data are decided on as they are, and never written as they are.

`detectors` finds them in a text, `redactor` in a value or a field, `cover` takes them out of what one observation leaves in the
log, `vault` holds the key of the digests that stand in their place.
"""
