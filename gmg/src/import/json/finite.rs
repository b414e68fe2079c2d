//! Numbers that JSON does not have.
//!
//! Profilers print floats as C++ and Python do: `inf`, `-nan`, `Infinity`. A document with one of them is
//! no JSON (RFC 8259, section 6), but nothing else is wrong with it. They are read as `-1`, which no
//! field that is used here can be, and which is told from a missing value.

use std::io::{self, Read};

use smallvec::SmallVec;

/// The longest of them.
const LONGEST: usize = "infinity".len();

/// A reader of JSON that gives `-1` for what is not a finite number.
pub(super) struct Finite<R> {
    inner: R,
    /// Read, but not handed out.
    pending: SmallVec<[u8; 16]>,
    given: usize,
    in_string: bool,
    escaped: bool,
    /// The last byte outside of strings.
    last: u8,
}

impl<R: Read> Finite<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, pending: SmallVec::new(), given: 0, in_string: false, escaped: false, last: b' ' }
    }

    fn next(&mut self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        loop {
            match self.inner.read(&mut byte) {
                Ok(0) => return Ok(None),
                Ok(_) => return Ok(Some(byte[0])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the rest of the word that begins with `first`, and what ends it, as pending.
    fn word(&mut self, first: u8) -> io::Result<()> {
        self.pending.clear();
        self.given = 0;
        self.pending.push(first);
        let mut end = None;
        while self.pending.len() <= LONGEST {
            match self.next()? {
                Some(letter) if letter.is_ascii_alphabetic() => self.pending.push(letter),
                other => {
                    end = other;
                    break;
                }
            }
        }
        let is = |word: &str| self.pending.eq_ignore_ascii_case(word.as_bytes());
        if is("nan") || is("inf") || is("infinity") {
            // The sign may have been handed out already.
            let value: &[u8] = if self.last == b'-' { b"1" } else { b"-1" };
            self.pending = SmallVec::from_slice(value);
        }
        self.last = b'a';
        if let Some(end) = end {
            self.pending.push(end);
            self.outside(end);
        }
        Ok(())
    }

    /// Notes a byte outside of strings.
    fn outside(&mut self, byte: u8) {
        self.in_string = byte == b'"';
        self.last = byte;
    }

    fn byte(&mut self) -> io::Result<Option<u8>> {
        if let Some(&byte) = self.pending.get(self.given) {
            self.given += 1;
            return Ok(Some(byte));
        }
        let Some(byte) = self.next()? else { return Ok(None) };
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return Ok(Some(byte));
        }
        // An exponent is no word.
        if matches!(byte, b'n' | b'N' | b'i' | b'I') && !self.last.is_ascii_alphanumeric() {
            self.word(byte)?;
            self.given = 1;
            return Ok(self.pending.first().copied());
        }
        self.outside(byte);
        Ok(Some(byte))
    }
}

impl<R: Read> Read for Finite<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        // A short read is as good as a full one, and parsers of JSON ask for single bytes.
        if let (Some(slot), Some(byte)) = (into.first_mut(), self.byte()?) {
            *slot = byte;
            read = 1;
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_no_numbers_become_minus_one_outside_of_strings() {
        let cases = [
            ("[nan, -inf, Infinity,-Infinity, NaN]", "[-1, -1, -1,-1, -1]"),
            (r#"{"inf": "nan \" inf", "a": null}"#, r#"{"inf": "nan \" inf", "a": null}"#),
            (r#"["\\", inf, "inf"]"#, r#"["\\", -1, "inf"]"#),
            (
                "[1e5, 1E5, true, false, nul, infinit, information]",
                "[1e5, 1E5, true, false, nul, infinit, information]",
            ),
            ("inf", "-1"),
            ("n", "n"),
            ("[nan\"a inf\"]", "[-1\"a inf\"]"),
        ];
        for (given, expected) in cases {
            let mut text = String::new();
            Finite::new(given.as_bytes()).read_to_string(&mut text).unwrap();
            assert_eq!(text, expected, "{given}");
        }
    }
}
