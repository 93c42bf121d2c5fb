//! Prompts, as tokens that carry their content instead of an interned id.

/// A token as the oracle compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Text(u32),
    /// One token of a span, identified by content and length.
    Media(u8, usize),
}

/// A piece of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(u32),
    /// Digest and length of a span.
    Media(u8, usize),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prompt(pub(crate) Vec<Part>);

/// The engine's placeholder in a span. Not a valid token id, so that reading it would fail.
const PLACEHOLDER: u32 = u32::MAX;

impl Prompt {
    pub(crate) fn text(tokens: impl IntoIterator<Item = u32>) -> Self {
        Self(tokens.into_iter().map(Part::Text).collect())
    }

    /// This prompt, continued.
    pub(crate) fn then(&self, other: &Self) -> Self {
        Self([&self.0[..], &other.0[..]].concat())
    }

    pub(crate) fn media(digest: u8, length: usize) -> Self {
        Self(vec![Part::Media(digest, length)])
    }

    pub(crate) fn tokens(&self) -> Vec<Token> {
        let mut tokens = Vec::new();
        for part in &self.0 {
            match *part {
                Part::Text(id) => tokens.push(Token::Text(id)),
                Part::Media(digest, length) => {
                    tokens.extend(std::iter::repeat_n(Token::Media(digest, length), length));
                }
            }
        }
        tokens
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens().len()
    }

    /// What the engine passes: ids, with placeholders in the spans.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let id = |token| match token {
            Token::Text(id) => id,
            Token::Media(..) => PLACEHOLDER,
        };
        self.tokens().into_iter().map(id).collect()
    }

    /// Start, end and digest of each span.
    pub(crate) fn spans(&self) -> Vec<(usize, usize, u8)> {
        let (mut spans, mut at) = (Vec::new(), 0);
        for part in &self.0 {
            match *part {
                Part::Text(_) => at += 1,
                Part::Media(digest, length) => {
                    spans.push((at, at + length, digest));
                    at += length;
                }
            }
        }
        spans
    }

    /// The last position at or before `at` that is not inside a span.
    pub(crate) fn cut_back(&self, at: usize) -> usize {
        self.spans().iter().find(|(start, end, _)| *start < at && at < *end).map_or(at, |span| span.0)
    }

    /// The first text token that is not a valid token id.
    pub(crate) fn first_invalid(&self) -> Option<(usize, u32)> {
        let tokens = self.tokens();
        let invalid = tokens.iter().enumerate().filter_map(|(at, token)| match token {
            Token::Text(id) if *id > kvcache_core::MAX_TOKEN => Some((at, *id)),
            _ => None,
        });
        invalid.min()
    }
}
