//! Mistakes in how a benchmark is called, and the checks that find them.

use anyhow::Result;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;

/// A mistake in how the benchmark was called: exit status 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// The error [`Usage`].
pub fn wrong<T>(message: impl Into<String>) -> Result<T> {
    Err(Usage(message.into()).into())
}

/// The value of an option must be in a range; of an optional one, if it is given.
pub fn within<T: PartialOrd + Display>(
    option: &str,
    values: impl IntoIterator<Item = T>,
    range: RangeInclusive<T>,
) -> Result<()> {
    if values.into_iter().all(|v| range.contains(&v)) {
        return Ok(());
    }
    wrong(format!(
        "{option} must be from {} to {}",
        range.start(),
        range.end()
    ))
}

/// A list must not name anything twice.
pub fn no_repeats<T: PartialEq>(option: &str, list: &[T]) -> Result<()> {
    match (1..list.len()).any(|i| list[..i].contains(&list[i])) {
        true => wrong(format!("{option} names the same twice")),
        false => Ok(()),
    }
}

/// A chart must have a file that can be written.
pub fn writable_chart(file: Option<&Path>) -> Result<()> {
    let Some(file) = file else {
        return Ok(());
    };
    let parent = file.parent().filter(|p| !p.as_os_str().is_empty());
    let place = match parent {
        _ if file.exists() => file,
        Some(dir) => dir,
        None => Path::new("."),
    };
    let may = rustix::fs::access(place, rustix::fs::Access::WRITE_OK);
    if may.is_err() || file.is_dir() {
        return wrong(format!(
            "--plot {} cannot be written: name a file in a directory you may write to",
            file.display()
        ));
    }
    Ok(())
}
