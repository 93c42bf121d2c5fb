//! Sizes of files over time, from the calls that change them.

use std::{collections::HashMap, path::PathBuf};

/// An upper bound on the bytes in the folder at any moment: growth is recorded before a call, shrinking after.
#[derive(Default)]
pub(crate) struct Trace {
    sizes: HashMap<PathBuf, u64>,
    total: u64,
    pub(crate) peak: u64,
}

impl Trace {
    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::Grow(path, bytes) => {
                let size = self.sizes.entry(path.clone()).or_default();
                self.total += bytes.saturating_sub(*size);
                *size = (*size).max(*bytes);
            }
            Event::Remove(path) => self.total -= self.sizes.remove(path).unwrap_or(0),
            Event::Rename(from, to) => {
                let size = self.sizes.remove(from).unwrap_or(0);
                self.total -= self.sizes.insert(to.clone(), size).unwrap_or(0);
            }
        }
        self.peak = self.peak.max(self.total);
    }
}

pub(crate) enum Event {
    Grow(PathBuf, u64),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
}

impl Event {
    pub(super) fn line(&self) -> String {
        match self {
            Self::Grow(path, bytes) => format!("grow\t{}\t{bytes}\n", path.display()),
            Self::Remove(path) => format!("remove\t{}\n", path.display()),
            Self::Rename(from, to) => format!("rename\t{}\t{}\n", from.display(), to.display()),
        }
    }

    pub(crate) fn parse(line: &str) -> Self {
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["grow", path, bytes] => Self::Grow(path.into(), bytes.parse().unwrap()),
            ["remove", path] => Self::Remove(path.into()),
            ["rename", from, to] => Self::Rename(from.into(), to.into()),
            _ => panic!("{line:?} is not an event"),
        }
    }
}
