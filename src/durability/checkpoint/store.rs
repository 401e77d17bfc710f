//! Where checkpoints are: a folder, or an object store by URL.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload, WriteMultipart};
use url::Url;

use super::manifest::{ClusterIdentity, MANIFEST, Manifest, sequence_of};

/// Data that no manifest names is only taken for left over when it is older than this: it may be about to get one.
const LEFT_OVER_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The place of all checkpoints of a cluster.
#[derive(Clone)]
pub struct CheckpointStore {
    store: Arc<dyn ObjectStore>,
    url: String,
    /// Where it is one.
    folder: Option<PathBuf>,
}

/// What the variables begin with that tell how to reach a cloud.
const CLOUDS: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];
/// What can be meant by a URL. Others that the library knows keep nothing, or cannot be written to.
const SCHEMES: [&str; 10] = ["file", "s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "https"];

/// The folder that a path or a `file:` URL names.
fn folder_of(url: &str) -> Result<Option<PathBuf>> {
    match Url::parse(url) {
        Ok(parsed) if parsed.scheme() == "file" => match parsed.to_file_path() {
            Ok(path) => Ok(Some(path)),
            Err(()) => bail!("{url}: file URLs are like file:///path"),
        },
        Ok(parsed) if SCHEMES.contains(&parsed.scheme()) => Ok(None),
        Ok(parsed) => bail!("{url}: nothing is saved to '{}': use a folder, s3://, gs:// or az://", parsed.scheme()),
        Err(_) => Ok(Some(url.into())),
    }
}

/// An error of the library's. Its text has its causes in it already.
pub(super) fn told(error: object_store::Error) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}

impl CheckpointStore {
    /// A folder by its path, or a place by its URL: `file:///path`, `s3://bucket/path`, ... Credentials and endpoints come
    /// from the environment, as they do for the tools of those clouds (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...).
    pub fn open(url: &str) -> Result<CheckpointStore> {
        if let Some(folder) = folder_of(url)? {
            std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {url} (--checkpoints)"))?;
        }
        CheckpointStore::existing(url)
    }

    /// The same for a folder that must be there.
    pub fn existing(url: &str) -> Result<CheckpointStore> {
        let opened = || -> Result<Arc<dyn ObjectStore>> {
            if let Some(folder) = folder_of(url)? {
                ensure!(folder.is_dir(), "there is no such folder");
                // A checkpoint lets parts of the log go, so it has to outlive a loss of power.
                return Ok(Arc::new(
                    LocalFileSystem::new_with_prefix(folder)?.with_fsync(true).with_automatic_cleanup(true),
                ));
            }
            // Ends as an error where another part of the program has chosen one; then that one is used.
            let _ = rustls::crypto::ring::default_provider().install_default();
            // Variables that are not valid text name nothing that is asked for.
            let settings =
                std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
            // The library would take names without a prefix too, and TIMEOUT or ENDPOINT may be anybody's.
            let settings = settings.filter(|(name, _)| CLOUDS.iter().any(|prefix| name.starts_with(prefix)));
            let (store, path) = object_store::parse_url_opts(&Url::parse(url)?, settings).map_err(told)?;
            Ok(Arc::new(PrefixStore::new(store, path)))
        };
        ensure!(!url.is_empty(), "there is no place for checkpoints: give --checkpoints a folder or a URL");
        let store = opened().with_context(|| format!("cannot open {url} (--checkpoints)"))?;
        Ok(CheckpointStore { store, url: url.into(), folder: folder_of(url)? })
    }

    /// A place that somebody else has opened.
    pub fn new(store: Arc<dyn ObjectStore>, url: &str) -> CheckpointStore {
        CheckpointStore { store, url: url.into(), folder: None }
    }

    /// Whether it is a folder, where a part of a file may be of any length.
    pub(super) fn is_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// All checkpoints, by number, that have a manifest. One that cannot be read stands there with the reason.
    pub async fn list(&self) -> Result<BTreeMap<u64, Result<Manifest>>> {
        let mut manifests = BTreeMap::new();
        for sequence in self.begun().await? {
            if let Some(manifest) = self.find(sequence).await.transpose() {
                manifests.insert(sequence, manifest);
            }
        }
        Ok(manifests)
    }

    /// Refuses a place that has checkpoints of another cluster.
    pub async fn check_cluster(&self, ours: &ClusterIdentity) -> Result<()> {
        for (sequence, manifest) in self.list().await? {
            match manifest {
                Ok(manifest) => manifest.check_cluster(ours, &self.url)?,
                Err(error) => tracing::warn!("checkpoint {sequence} cannot be read: {error:#}"),
            }
        }
        Ok(())
    }

    /// Makes sure that everything is there that a checkpoint differs from: somebody may have removed it meanwhile.
    pub async fn check_chain(&self, manifest: &Manifest) -> Result<()> {
        let mut bases: Vec<u64> = manifest.bases().collect();
        while let Some(base) = bases.pop() {
            let found = self.get(base).await;
            let found = found.with_context(|| format!("checkpoint {} differs from {base}", manifest.sequence))?;
            bases.extend(found.bases());
            bases.sort_unstable();
            bases.dedup();
        }
        Ok(())
    }

    /// A number that no checkpoint has, and none that was begun.
    pub async fn next_sequence(&self) -> Result<u64> {
        Ok(self.begun().await?.into_iter().max().unwrap_or(0) + 1)
    }

    /// The numbers of all checkpoints that were ever begun and have anything there.
    async fn begun(&self) -> Result<Vec<u64>> {
        let listed = self.store.list_with_delimiter(None).await.map_err(told);
        let folders = listed.with_context(|| format!("cannot list {}", self.url))?.common_prefixes;
        Ok(folders.iter().filter_map(|folder| folder.filename().and_then(sequence_of)).collect())
    }

    /// A checkpoint's manifest, if it has one.
    pub async fn find(&self, sequence: u64) -> Result<Option<Manifest>> {
        let path = format!("{}/{MANIFEST}", super::manifest::folder(sequence));
        let text = match self.store.get(&Path::from(path.as_str())).await {
            Ok(found) => found.bytes().await.map_err(told).with_context(|| self.place(&path))?,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(told(error)).with_context(|| self.place(&path)),
        };
        let manifest = Manifest::decode(&text).with_context(|| self.place(&path))?;
        ensure!(manifest.sequence == sequence, "{}: it is the manifest of {}", self.place(&path), manifest.sequence);
        Ok(Some(manifest))
    }

    /// A checkpoint's manifest, which must be there.
    pub async fn get(&self, sequence: u64) -> Result<Manifest> {
        match self.find(sequence).await? {
            Some(manifest) => Ok(manifest),
            None => bail!("there is no checkpoint {sequence} in {}: see hotrow checkpoint list", self.url),
        }
    }

    /// Writes a manifest, which makes the checkpoint. `false` if there is one of this number already.
    pub async fn put(&self, manifest: &Manifest) -> Result<bool> {
        let (path, text) = (manifest.path(), manifest.encode()?);
        match self.store.put_opts(&Path::from(path.as_str()), PutPayload::from(text), PutMode::Create.into()).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(told(error)).with_context(|| self.place(&path)),
        }
    }

    /// Starts to write a file, in parts of `part` bytes.
    pub(super) async fn upload(&self, path: &str, part: usize) -> Result<WriteMultipart> {
        let upload =
            self.store.put_multipart(&Path::from(path)).await.map_err(told).with_context(|| self.place(path))?;
        Ok(WriteMultipart::new_with_chunk_size(upload, part))
    }

    /// Bytes of a file, as they come.
    pub(super) async fn read(
        &self,
        path: &str,
        range: std::ops::Range<u64>,
    ) -> Result<impl futures_util::Stream<Item = Result<Bytes>> + Unpin + Send + use<>> {
        let options = GetOptions { range: Some(range.into()), ..GetOptions::default() };
        let place = self.place(path);
        let found =
            self.store.get_opts(&Path::from(path), options).await.map_err(told).with_context(|| place.clone())?;
        Ok(found.into_stream().map_err(move |e| told(e).context(place.clone())))
    }

    /// Removes a file. One that is not there is fine.
    pub(crate) async fn remove(&self, path: &str) -> Result<()> {
        match self.store.delete(&Path::from(path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(told(error)).with_context(|| self.place(path)),
        }
    }

    /// Files that no manifest of `kept` names and that are old enough to be left over.
    pub(super) async fn left_over(&self, kept: &BTreeMap<u64, Manifest>) -> Result<Vec<String>> {
        let named: Vec<&str> = kept.values().flat_map(|m| m.files.iter().map(|file| file.path.as_str())).collect();
        let all: Vec<_> = self.store.list(None).try_collect().await?;
        let now = std::time::SystemTime::now();
        let old = |made: std::time::SystemTime| now.duration_since(made).is_ok_and(|age| age > LEFT_OVER_AFTER);
        let left = all.into_iter().filter(|file| file.location.filename() != Some(MANIFEST));
        let left = left.filter(|file| old(file.last_modified.into()) && !named.contains(&file.location.as_ref()));
        Ok(left.map(|file| file.location.to_string()).collect())
    }

    /// Removes what killed processes have left in a folder: files that never got their name, which the library does not
    /// list.
    pub(super) fn remove_unnamed(&self) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        for checkpoint in std::fs::read_dir(folder)?.flatten().filter(|entry| entry.path().is_dir()) {
            for file in std::fs::read_dir(checkpoint.path())?.flatten() {
                let is_unnamed = file.file_name().to_str().is_some_and(|name| name.contains(".data#"));
                let age = file.metadata().and_then(|file| file.modified()).map(|made| made.elapsed());
                if is_unnamed && matches!(age, Ok(Ok(age)) if age > LEFT_OVER_AFTER) {
                    std::fs::remove_file(file.path())?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn place(&self, path: &str) -> String {
        format!("{}/{path}", self.url.trim_end_matches('/'))
    }
}
