//! One folder: what it evicts, and what else it finds on disk.

mod contents;
mod eviction;

use kvcache_disk::folder::{Folder, Put};

use crate::make::{Record, chain, namer, tokens};

/// Size of a record of 32 tokens: header and two arrays.
const RECORD: u64 = 16 * 1024 + 2 * 512;
const LEDGER: u64 = 4096;

fn path(seed: u32) -> Vec<Record> {
    chain(&namer("m"), &tokens(seed, 96), &[32, 64, 96])
}

fn put(folder: &Folder, record: &Record) {
    assert_eq!(folder.put(&record.spec, &record.slices()).unwrap(), Put::Written);
}

fn there(folder: &Folder, records: &[Record]) -> Vec<bool> {
    records.iter().map(|record| folder.settings().root.join(record.spec.name.path()).exists()).collect()
}
