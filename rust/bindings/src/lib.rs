//! Python extension module `kvcache._core`.
