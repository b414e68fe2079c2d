//! Files that appear whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Writes the file at `path` by `write` and gives its size in bytes. It is written beside its place under a name of
/// this call and moved there when it is complete; if anything fails, nothing is left and what was there stays. Of a
/// process that is killed `.NAME.PROCESS-CALL.unfinished` remains.
///
/// A device, pipe or other thing at `path` that is no plain file is written in place.
///
/// # Errors
/// Those of `write` and of the file system.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<u64> {
    // Through a link, so that the link stays.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let known = fs::metadata(&target).ok();
    if known.as_ref().is_some_and(|known| !known.is_file()) {
        let mut file = BufWriter::new(OpenOptions::new().write(true).open(&target)?);
        write(&mut file)?;
        file.flush()?;
        return Ok(0);
    }
    let unfinished = beside(&target)?;
    let outcome = File::create(&unfinished).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.flush()?;
        let size = file.get_ref().metadata()?.len();
        if let Some(known) = known {
            file.get_ref().set_permissions(known.permissions())?;
        }
        drop(file);
        fs::rename(&unfinished, &target)?;
        Ok(size)
    });
    if outcome.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    outcome
}

/// The name of the unfinished file: two programs or threads that write one file do not meet in it.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "expected the name of a file"));
    };
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let mut unfinished = OsString::from(".");
    unfinished.push(name);
    unfinished.push(format!(".{}-{call}.unfinished", process::id()));
    Ok(path.with_file_name(unfinished))
}
