//! What programs say: results on standard output, all else on standard error.
//!
//! `print!` and its relatives end a program by a panic where nobody reads or the disk is full. Here what cannot be
//! printed is an error that names standard output, and [`is_closed`] tells a reader who has read enough from all else.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};

/// Standard output of this program. Its errors name it and keep their kind.
#[derive(Debug)]
pub struct Output(io::StdoutLock<'static>);

impl Output {
    /// Standard output, which no other thread can write to as long as this lives.
    pub fn lock() -> Self {
        Self(io::stdout().lock())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(unprinted)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(unprinted)
    }
}

/// Why something is not on standard output.
#[derive(Debug)]
struct Unprinted(io::Error);

impl fmt::Display for Unprinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "standard output: cannot be written: {}", self.0)
    }
}

impl Error for Unprinted {}

fn unprinted(error: io::Error) -> io::Error {
    // Writers try again by themselves.
    if error.kind() == io::ErrorKind::Interrupted { error } else { io::Error::new(error.kind(), Unprinted(error)) }
}

/// Puts `text` on standard output, at once.
///
/// # Errors
/// If it cannot be written; see [`is_closed`].
pub fn print(text: impl fmt::Display) -> io::Result<()> {
    let mut out = Output::lock();
    write!(out, "{text}")?;
    out.flush()
}

/// Puts `text` and the end of a line on standard error. What cannot be written there is lost: there is nobody to tell.
pub fn complain(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// True if `failure` says that whoever reads standard output has read enough.
pub fn is_closed(failure: &(dyn Error + 'static)) -> bool {
    let error = failure.downcast_ref::<io::Error>();
    error.is_some_and(|error| {
        error.kind() == io::ErrorKind::BrokenPipe && error.get_ref().is_some_and(|inner| inner.is::<Unprinted>())
    })
}

/// What came of printing, where it is as good as printed that the reader has read enough.
///
/// # Errors
/// All others.
pub fn unless_closed(printed: io::Result<()>) -> io::Result<()> {
    match printed {
        Err(error) if is_closed(&error) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_who_has_read_enough_is_told_from_a_full_disk_and_from_other_pipes() {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed(&unprinted(closed())));
        assert!(!is_closed(&closed()), "some other pipe");
        let full = unprinted(io::ErrorKind::StorageFull.into());
        assert!(!is_closed(&full));
        assert_eq!(full.to_string(), "standard output: cannot be written: no storage space");
        assert!(unless_closed(Err(unprinted(closed()))).is_ok());
        assert!(unless_closed(Err(full)).is_err());
    }
}
