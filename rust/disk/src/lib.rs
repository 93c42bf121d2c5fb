//! Files.
pub mod clock;
pub mod digest;
pub mod files;
pub mod name;
pub mod record;
pub use safetensors::Dtype;
