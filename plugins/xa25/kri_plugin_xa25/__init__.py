"""CacheBlend's repair: compute the KV afresh of the kept tokens whose stored KV is furthest off."""
