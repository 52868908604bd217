//! Others' limiters, written anew from their published descriptions and sources.
