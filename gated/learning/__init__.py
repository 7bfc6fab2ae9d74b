"""Learned barriers: from recorded runs to a small network, checked on runs that it has not seen.

Nothing of this runs where calls are decided. Needs the extra `gated[neural]`.
"""
