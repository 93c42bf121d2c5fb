//! Token keys, and what is built from them.
//!
//! | file | contents |
//! |---|---|
//! | [`token`] | one key, and runs of keys: checks and comparisons |
//! | [`query`] | the keys that a call looks up or stores, and where they must not be cut |
//! | [`media`] | contents of images and audio, interned as keys |
//! | [`hash`] | path hashes, the same in every process |

pub(crate) mod hash;
pub(crate) mod media;
pub(crate) mod query;
pub(crate) mod token;
