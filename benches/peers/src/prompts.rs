//! Token prompts from a fixed seed.

const VOCABULARY: u32 = 150_000;

/// splitmix64: enough to keep prompts apart.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn prompt(&mut self, length: usize) -> Vec<u32> {
        (0..length).map(|_| self.below(u64::from(VOCABULARY)) as u32).collect()
    }

    /// 16 to 32 tokens.
    pub(crate) fn short(&mut self) -> Vec<u32> {
        let length = 16 + self.below(17) as usize;
        self.prompt(length)
    }
}

/// A copy in a buffer of its own that differs from token `at` on, in its own way per `number`.
pub(crate) fn leaving(prompt: &[u32], at: usize, number: u32) -> Vec<u32> {
    let changed = prompt[at..].iter().map(|token| token + VOCABULARY * (number + 1));
    prompt[..at].iter().copied().chain(changed).collect()
}
