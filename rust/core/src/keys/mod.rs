//! Token keys, and what is made of them.
//!
//! | file | what it is |
//! |---|---|
//! | [`token`] | one key, and runs of keys: checks and comparisons |
//! | [`query`] | what a call asks about, and where it may not be cut |
//! | [`media`] | contents of images and audio, interned as keys |
//! | [`hash`] | one hash of a path, the same in every process |

pub(crate) mod hash;
pub(crate) mod media;
pub(crate) mod query;
pub(crate) mod token;
