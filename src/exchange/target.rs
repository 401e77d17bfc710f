//! A file that gets its name when it is whole.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use tempfile::NamedTempFile;

/// A file under a temporary name beside its own, ending in `.partial`. Without [`Target::finish`] it is removed.
pub struct Target {
    temporary: NamedTempFile,
    path: PathBuf,
    force: bool,
}

impl Target {
    /// Begins a file; `force` is whether it may replace another.
    pub fn create(path: &Path, force: bool) -> Result<Target> {
        let Some(name) = path.file_name() else { bail!("{} is not the name of a file", path.display()) };
        if !force && path.symlink_metadata().is_ok() {
            bail!("{} exists: give another name, or --force to replace it", path.display());
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = tempfile::Builder::new()
            .prefix(&format!(".{}.", name.to_string_lossy()))
            .suffix(".partial")
            // As any new file: whoever runs this decides with their umask.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .with_context(|| format!("cannot write to {}", folder.display()))?;
        Ok(Target { temporary, path: path.into(), force })
    }

    /// The file.
    pub fn file(&self) -> &File {
        self.temporary.as_file()
    }

    /// Where it is until it is whole.
    pub fn temporary(&self) -> &Path {
        self.temporary.path()
    }

    /// Puts it on disk and gives it its name. Returns its length.
    pub fn finish(self) -> Result<u64> {
        let named = || format!("cannot write {}", self.path.display());
        self.file().sync_all().with_context(named)?;
        let bytes = self.file().metadata().with_context(named)?.len();
        let Target { temporary, path, force } = self;
        let persisted = if force { temporary.persist(&path) } else { temporary.persist_noclobber(&path) };
        persisted.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(bytes)
    }
}
