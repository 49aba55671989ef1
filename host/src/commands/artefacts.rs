//! The flags for the store of OpsJobs' files.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use oarlock_artefacts::{Artefacts, FilesShare, S3Options, S3Place};

/// The flags of the store: a folder or a bucket.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ArtefactArgs {
    /// Folder for the files of OpsJobs, such as preflight reports and collected logs. The host keeps them for 30 days
    /// in the subfolder `artefacts`. Without --data and --artefacts, it collects no logs. The history of OpsJobs is in
    /// this folder too, unless --history names another place [default: no files are kept]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Bucket of an S3-compatible store for these files, instead of a folder: s3://BUCKET or s3://BUCKET/PREFIX
    ///
    /// The keys are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the usual variables of a pod's role name them.
    #[arg(long, value_name = "URL", conflicts_with = "data", value_parser = NonEmptyStringValueParser::new())]
    artefacts: Option<String>,
    /// Address of the S3-compatible store, such as https://minio.example.com:9000 [default: the AWS address of the
    /// region]
    #[arg(long, value_name = "URL", env = "OARLOCK_ARTEFACTS_ENDPOINT", value_parser = NonEmptyStringValueParser::new())]
    artefacts_endpoint: Option<String>,
    /// Region of the S3-compatible store [default: us-east-1]
    #[arg(long, value_name = "NAME", env = "OARLOCK_ARTEFACTS_REGION", value_parser = NonEmptyStringValueParser::new())]
    artefacts_region: Option<String>,
    /// PEM file with CA certificates for the S3-compatible store, in addition to those of the system
    #[arg(long, value_name = "FILE", requires = "artefacts")]
    artefacts_ca: Option<PathBuf>,
    /// Most space for the files of one namespace, or of one user that is no ServiceAccount. A share of the volume such
    /// as 25%, or a size such as 64Gi [default: 25% of a volume, 64Gi in a bucket]
    #[arg(long, value_name = "SHARE")]
    files_share: Option<FilesShare>,
}

/// The store that the flags name.
enum ArtefactPlace {
    Folder(PathBuf),
    Bucket(Box<S3Place>),
}

impl ArtefactArgs {
    /// Opens the store, if the flags name one. Checks that the host can use a bucket.
    pub(crate) async fn open(self) -> anyhow::Result<Option<Artefacts>> {
        let share = self.files_share;
        let opened = match self.place()? {
            Some(ArtefactPlace::Folder(folder)) => Artefacts::in_folder(&folder).map(Some),
            Some(ArtefactPlace::Bucket(place)) => Artefacts::in_bucket(*place).await.map(Some),
            None => Ok(None),
        };
        let opened = opened.map_err(anyhow::Error::msg)?;
        Ok(opened.map(|artefacts| match share {
            Some(share) => artefacts.with_share(share),
            None => artefacts,
        }))
    }

    /// Opens the store for a process that only reads, if the flags name one.
    pub(crate) async fn open_to_read(self) -> anyhow::Result<Option<Artefacts>> {
        match self.place()? {
            Some(ArtefactPlace::Bucket(place)) => {
                Artefacts::in_bucket_to_read(*place).await.map(Some).map_err(anyhow::Error::msg)
            }
            Some(ArtefactPlace::Folder(folder)) => Artefacts::in_folder(&folder).map(Some).map_err(anyhow::Error::msg),
            None => Ok(None),
        }
    }

    fn place(self) -> anyhow::Result<Option<ArtefactPlace>> {
        let Self { data, artefacts, artefacts_endpoint, artefacts_region, artefacts_ca, files_share: _ } = self;
        let Some(url) = artefacts else { return Ok(data.map(ArtefactPlace::Folder)) };
        let read = |path: PathBuf| {
            std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read the certificates in {}", path.display()))
        };
        let options = S3Options {
            endpoint: artefacts_endpoint,
            region: artefacts_region,
            ca: artefacts_ca.map(read).transpose()?,
            ..S3Options::of_variables(|name| std::env::var(name).ok())
        };
        let place = S3Place::read(&url, &options).map_err(|error| anyhow::anyhow!("--artefacts {error}"))?;
        Ok(Some(ArtefactPlace::Bucket(Box::new(place))))
    }
}
