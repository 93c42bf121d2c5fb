//! KV records as files in a bounded folder: names, checksums, room, threads. Bytes and ids only; no tree, no
//! Python.
//!
//! | module | responsible for |
//! |---|---|
//! | [`name`] | content names of records |
//! | [`record`] | one file: its format and checksums, and reading parts of it |
//! | [`folder`] | one bounded folder: room, eviction, scan, removal |
//! | [`writer`] | the write queue and its thread |
//! | [`reader`] | reading many records at once, until a deadline |
//! | [`files`] | file operations, as a trait |
//! | [`clock`] | the clock, as a trait |
//!
//! # Use
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use kvcache_disk::{
//!     Dtype, clock::SystemClock, files::OsFiles, folder::{Folder, Settings}, name::{Identity, Kind, Namer},
//!     reader::{Outcome, Reader, Want}, record::{ArraySpec, Spec}, writer::Writer,
//! };
//!
//! # let root = tempfile::tempdir()?;
//! # let root = root.path().join("kv");
//! let settings = Settings { root, max_bytes: 1 << 30, reserve: 0, durable: false };
//! let folder = Folder::open(settings, Arc::new(OsFiles), Arc::new(SystemClock));
//! let writer = Writer::new(Arc::clone(&folder), 256 << 20);
//! let reader = Reader::new(Arc::clone(&folder), 4);
//!
//! // One namer per namespace and layout. One pass over a prompt names all its records.
//! let identity = Identity {
//!     namespace: "model@revision".into(),
//!     layout: "[[\"KVCache\", 2, 4]]".into(),
//!     rank: 0,
//!     ranks: 1,
//!     segment_tokens: 1024,
//! };
//! let namer = Namer::new(identity, None);
//! let tokens = vec![5, 6, 7];
//! let hashes = namer.hashes(&tokens, &[], &[0, 3])?;
//! let name = namer.name(Kind::Segment, hashes[0], 3, hashes[1]);
//!
//! // Two heads, three tokens, four bytes per row.
//! let array =
//!     ArraySpec { name: "layers.0.keys".into(), dtype: Dtype::U8, shape: vec![2, 3, 4], token_axis: Some(1) };
//! let spec = Spec {
//!     name,
//!     identity: Arc::clone(namer.identity()),
//!     start: 0,
//!     tokens: tokens.clone(),
//!     media: Vec::new(),
//!     parent: None,
//!     meta: String::new(),
//!     arrays: vec![array],
//! };
//! writer.submit(spec, Box::new(vec![(0..24).collect::<Vec<u8>>()])).map_err(|refusal| refusal.to_string())?;
//! assert!(writer.flush(Duration::from_secs(60)));
//!
//! // Tokens 1 and 2 of each head.
//! let want = Want {
//!     name,
//!     identity: Arc::clone(namer.identity()),
//!     start: 1,
//!     tokens: tokens[1..].to_vec(),
//!     media: Vec::new(),
//!     destination: vec![vec![0; 8]; 2],
//! };
//! let outcomes = reader.read(vec![want], Duration::from_secs(60));
//! let Outcome::Read { destination, .. } = &outcomes[0] else { panic!("{outcomes:?}") };
//! assert_eq!(destination[1], (16..24).collect::<Vec<u8>>());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What the caller guarantees
//!
//! Names come from [`Namer`](name::Namer), for exactly the prompt they are used with; arrays do not change
//! while they are queued; paths are submitted from head to tail. Nothing else: anyone may damage, swap or
//! remove files at any time, processes may be killed, and the disk may fail or hang. The worst result is a
//! miss.
//!
//! # Threads
//!
//! [`Folder::open`](folder::Folder::open) starts a thread that ends with the scan, and
//! [`Writer::new`](writer::Writer::new) one that ends with `close`. [`Reader::read`](reader::Reader::read)
//! starts threads that end with the call or, if the disk hangs, when it responds. Sources and destinations may
//! be dropped on any of them. A forked child has none of these threads, so it needs its own folder, writer and
//! reader.
#![forbid(unsafe_code)]

pub mod clock;
pub mod digest;
pub mod files;
pub mod folder;
pub mod name;
pub mod reader;
pub mod record;
pub mod writer;

pub use digest::Digest;
pub use safetensors::Dtype;
