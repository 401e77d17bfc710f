//! A place for checkpoints on a disk that can lose power and fail, written to as a folder is: aside, synced, renamed, and
//! the name synced.

use std::fmt;
use std::io;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use hotrow::durability::{Disk as _, DiskFile};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;

use crate::disk::{SimDisk, write_whole};

/// What a name on the disk begins with if it is an object's.
const PREFIX: &str = "objects/";
/// What the name of an object that is not complete ends with.
const ASIDE: &str = ".new";

/// The store.
#[derive(Clone)]
pub struct SimStore(pub SimDisk);

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimStore")
    }
}

impl fmt::Display for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimStore")
    }
}

fn failed(error: io::Error) -> Error {
    Error::Generic { store: "SimStore", source: error.into() }
}

impl SimStore {
    fn has(&self, name: &str) -> Result<bool> {
        Ok(self.0.list().map_err(failed)?.iter().any(|other| other == name))
    }

    /// What is there, to be read.
    async fn objects(&self) -> Result<InMemory> {
        let memory = InMemory::new();
        for (name, bytes) in self.0.bytes() {
            if let Some(path) = name.strip_prefix(PREFIX).filter(|path| !path.ends_with(ASIDE)) {
                memory.put(&Path::from(path), bytes.into()).await?;
            }
        }
        Ok(memory)
    }
}

#[tonic::async_trait]
impl ObjectStore for SimStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let name = format!("{PREFIX}{location}");
        if matches!(options.mode, PutMode::Create) && self.has(&name)? {
            return Err(Error::AlreadyExists { path: name, source: "it is there".into() });
        }
        let bytes: Vec<u8> = payload.iter().flat_map(|part| part.to_vec()).collect();
        write_whole(&self.0, &name, &bytes).map_err(failed)?;
        Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
    }

    async fn put_multipart_opts(&self, location: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let name = format!("{PREFIX}{location}");
        let file = self.0.create(&format!("{name}{ASIDE}")).map_err(failed)?;
        Ok(Box::new(Upload { disk: self.0.clone(), name, file: Arc::new(Mutex::new(file)), len: 0 }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.objects().await?.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let delete = move |path: Result<Path>| {
            let path = path?;
            let name = format!("{PREFIX}{path}");
            if !store.has(&name)? {
                return Err(Error::NotFound { path: name, source: "it is not there".into() });
            }
            store.0.remove(&name).map_err(failed)?;
            Ok(path)
        };
        locations.map(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (self.clone(), prefix.cloned());
        futures_util::stream::once(async move {
            match store.objects().await {
                Ok(objects) => objects.list(prefix.as_ref()),
                Err(error) => futures_util::stream::once(async { Err(error) }).boxed(),
            }
        })
        .flatten()
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects().await?.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        unreachable!("nothing copies")
    }
}

struct Upload {
    disk: SimDisk,
    name: String,
    file: Arc<Mutex<Box<dyn DiskFile>>>,
    len: u64,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[tonic::async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (file, at) = (Arc::clone(&self.file), self.len);
        self.len += data.content_length() as u64;
        Box::pin(async move {
            let bytes: Vec<u8> = data.iter().flat_map(|part| part.to_vec()).collect();
            file.lock().write_at(at, &bytes).map_err(failed)
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.file.lock().sync().map_err(failed)?;
        self.disk.rename(&format!("{}{ASIDE}", self.name), &self.name).map_err(failed)?;
        self.disk.sync_names().map_err(failed)?;
        Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
    }

    async fn abort(&mut self) -> Result<()> {
        match self.disk.remove(&format!("{}{ASIDE}", self.name)) {
            // It has its name already, and could not be synced.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(failed),
        }
    }
}
