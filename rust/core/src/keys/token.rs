//! One key: 31 bits of token id, or the media bit and an interned content id; and runs of them.

use crate::error::Error;

/// The largest token id.
pub const MAX_TOKEN: u32 = MEDIA_BIT - 1;

/// Set on the keys of tokens inside an image or audio span.
pub(crate) const MEDIA_BIT: u32 = 1 << 31;

/// The key of a content that is not interned. Equals no stored key.
pub(crate) const UNKNOWN_MEDIA: u32 = u32::MAX;

/// Checks that `keys`, which start at position `start` of the query, are token ids. O(n), vectorised.
///
/// # Errors
/// The first key that is not a token id.
pub fn check_tokens(keys: &[u32], start: usize) -> Result<(), Error> {
    if !any_media(keys) {
        return Ok(());
    }
    let at = keys.iter().position(|key| key & MEDIA_BIT != 0).unwrap_or_default();
    Err(Error::InvalidToken { position: start + at, key: keys[at] })
}

/// Whether any key carries the media bit. O(n), vectorised: combining many lanes without a branch takes
/// a quarter of the time of a search that stops at the first.
pub(crate) fn any_media(keys: &[u32]) -> bool {
    const LANES: usize = 32;
    let (chunks, rest) = keys.as_chunks::<LANES>();
    let mut seen = [0; LANES];
    for chunk in chunks {
        for (bits, key) in seen.iter_mut().zip(chunk) {
            *bits |= key;
        }
    }
    seen.iter().chain(rest).fold(0, |bits, key| bits | key) & MEDIA_BIT != 0
}

/// The number of equal leading keys, and an upper bound on the number compared. O(n): one comparison of
/// everything, then a bisection if it finds a difference.
pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> (usize, usize) {
    const SCAN: usize = 8;
    let n = a.len().min(b.len());
    let (mut a, mut b) = (&a[..n], &b[..n]);
    if a == b {
        return (n, n);
    }
    let (mut equal, mut compared) = (0, n);
    while a.len() > SCAN {
        let half = a.len() / 2;
        let (left, right) = (a.split_at(half), b.split_at(half));
        compared += half;
        if left.0 == right.0 {
            equal += half;
            (a, b) = (left.1, right.1);
        } else {
            (a, b) = (left.0, right.0);
        }
    }
    equal += a.iter().zip(b).take_while(|(x, y)| x == y).count();
    (equal, compared + a.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_prefix_finds_every_position() {
        let a: Vec<u32> = (0..200).collect();
        for at in 0..a.len() {
            let mut b = a.clone();
            b[at] += 1000;
            let (equal, compared) = common_prefix(&a, &b);
            assert_eq!(equal, at);
            assert!((200..=2 * 200).contains(&compared));
        }
        assert_eq!(common_prefix(&a, &a[..77]), (77, 77));
        assert_eq!(common_prefix(&[], &a), (0, 0));
    }

    #[test]
    fn check_names_position_and_value() {
        assert_eq!(check_tokens(&[1, MAX_TOKEN], 5), Ok(()));
        let negative = (-3_i32).cast_unsigned();
        assert_eq!(
            check_tokens(&[1, negative, negative], 5),
            Err(Error::InvalidToken { position: 6, key: negative })
        );
    }
}
