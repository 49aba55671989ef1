//! Where the files of OpsJobs are kept, as flags name it.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use oarlock_artefacts::{Artefacts, FilesShare, S3Options, S3Place};

/// A folder or a bucket.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ArtefactArgs {
    /// Folder for the files that OpsJobs leave, such as the report of a preflight and collected logs: below `artefacts` in there, for 30
    /// days. Without it and without --artefacts no logs are collected. The history of OpsJobs is there too, unless --history names another
    /// place
    /// [default: none are left]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Bucket of an S3-compatible store for these files, in place of a folder: s3://BUCKET or s3://BUCKET/PREFIX
    ///
    /// Its keys are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; or the usual variables of a role in a pod name them.
    #[arg(long, value_name = "URL", conflicts_with = "data", value_parser = NonEmptyStringValueParser::new())]
    artefacts: Option<String>,
    /// Address of that store, such as https://minio.example.com:9000 [default: that of AWS for the region]
    #[arg(long, value_name = "URL", env = "OARLOCK_ARTEFACTS_ENDPOINT", value_parser = NonEmptyStringValueParser::new())]
    artefacts_endpoint: Option<String>,
    /// Region of that store [default: us-east-1]
    #[arg(long, value_name = "NAME", env = "OARLOCK_ARTEFACTS_REGION", value_parser = NonEmptyStringValueParser::new())]
    artefacts_region: Option<String>,
    /// Certificates of the authorities that may sign that of the store, in PEM, beside those of the system
    #[arg(long, value_name = "FILE", requires = "artefacts")]
    artefacts_ca: Option<PathBuf>,
    /// Most that the files of one namespace, or of one user who is no account, take: a part of their volume such as 25%, or a size such as
    /// 64Gi [default: 25% of a volume, 64Gi in a bucket]
    #[arg(long, value_name = "SHARE")]
    files_share: Option<FilesShare>,
}

/// The place of the files.
enum ArtefactPlace {
    Folder(PathBuf),
    Bucket(Box<S3Place>),
}

impl ArtefactArgs {
    /// The store, where one is named. A bucket is tried.
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

    /// The same for a process that only reads.
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
