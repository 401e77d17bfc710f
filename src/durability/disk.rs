//! The few things that the log asks of a disk.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// A folder of files. There are two: [`LocalFolder`], and the one of the tests that loses power.
pub trait Disk: Send + Sync + 'static {
    /// The names of the files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// A new, empty file. One that exists is an error.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// A file that exists.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Returns when files that were created or removed stay so, whatever happens.
    fn sync_names(&self) -> io::Result<()>;
    /// Where it is, for messages.
    fn path(&self) -> PathBuf;
}

/// A file on a [`Disk`].
pub trait DiskFile: Send {
    /// Its length.
    fn length(&self) -> io::Result<u64>;
    /// Reads up to `buf.len()` bytes; fewer only at the end.
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `bytes`. After an error any part of them may be there.
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Cuts it off.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
    /// Returns when everything written stays, whatever happens.
    fn sync(&mut self) -> io::Result<()>;
}

/// A folder of the system.
pub struct LocalFolder {
    path: PathBuf,
}

impl LocalFolder {
    /// The folder at `path`, made where it does not exist.
    pub fn new(path: &Path) -> io::Result<LocalFolder> {
        std::fs::create_dir_all(path)?;
        Ok(LocalFolder { path: path.into() })
    }
}

impl Disk for LocalFolder {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.path.join(name))?;
        Ok(Box::new(LocalFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        Ok(Box::new(LocalFile(file)))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn path(&self) -> PathBuf {
        self.path.clone()
    }
}

struct LocalFile(File);

impl DiskFile for LocalFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        while read < buf.len() {
            match self.0.read_at(&mut buf[read..], at + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}
