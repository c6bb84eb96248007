//! A folder, held as an open handle. Links are not followed when a folder is entered. Other processes may write to it
//! too. An operation on a name always acts in this folder, even if the path meanwhile leads to another one.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};

#[cfg(not(unix))]
pub use paths::Folder;
#[cfg(unix)]
pub use unix::Folder;

/// The kind of an entry of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A regular file, with a number that is the same for two names of one file; 0 if the system has no such number.
    File(u128),
    Folder,
    /// Anything else, in words.
    Other(&'static str),
}

impl Kind {
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::File(_) => "a file that no manifest of this program names",
            Self::Folder => "a folder",
            Self::Other(what) => what,
        }
    }
}

impl Folder {
    /// The parent folder of the path `name` below this one, and its last component; none if a parent is missing.
    pub(super) fn way<'n>(&self, name: &'n str) -> Result<Option<(Self, &'n str)>> {
        self.walk(name, Self::enter)
    }

    /// As [`Self::way`], but makes missing parents.
    pub(super) fn make_way<'n>(&self, name: &'n str) -> Result<(Self, &'n str)> {
        let way = self.walk(name, |folder, part| folder.make(part).map(Some))?;
        way.ok_or_else(|| Error::from(ErrorKind::NotFound))
    }

    fn walk<'n>(
        &self,
        name: &'n str,
        step: impl Fn(&Self, &str) -> Result<Option<Self>>,
    ) -> Result<Option<(Self, &'n str)>> {
        let (way, name) = name.rsplit_once('/').map_or((None, name), |(way, name)| (Some(way), name));
        let mut folder = self.again()?;
        for part in way.into_iter().flat_map(|way| way.split('/')) {
            match step(&folder, part)? {
                Some(next) => folder = next,
                None => return Ok(None),
            }
        }
        Ok(Some((folder, name)))
    }

    /// The kind of the path `name` below this folder; none if nothing is there.
    pub(super) fn kind(&self, name: &str) -> Result<Option<Kind>> {
        match self.way(name)? {
            Some((folder, name)) => folder.kind_here(name),
            None => Ok(None),
        }
    }

    /// The paths of all files below this folder.
    pub(super) fn files(&self) -> Result<Vec<String>> {
        let (mut files, mut folders) = (Vec::new(), vec![(String::new(), self.again()?)]);
        while let Some((way, folder)) = folders.pop() {
            for name in folder.names()? {
                let path = format!("{way}{name}");
                match folder.kind_here(&name)? {
                    Some(Kind::File(_)) => files.push(path),
                    Some(Kind::Folder) => {
                        if let Some(inner) = folder.enter(&name)? {
                            folders.push((path + "/", inner));
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(files)
    }

    /// Opens the regular file `name` for reading.
    pub(super) fn open_file(&self, name: &str) -> Result<File> {
        let file = self.open_here(name)?;
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(Error::new(ErrorKind::InvalidInput, "not a regular file")),
        }
    }
}

#[cfg(unix)]
mod unix {
    use std::fs::File;
    use std::io::Result;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags};
    use rustix::io::Errno;

    use super::Kind;

    /// A folder that is open.
    pub struct Folder(OwnedFd);

    const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    impl Folder {
        /// Opens the folder at `path`. It may be a link, which the user chose.
        pub(in super::super) fn open(path: &Path) -> Result<Self> {
            Ok(Self(fs::open(path, FOLDER, Mode::empty())?))
        }

        pub(super) fn again(&self) -> Result<Self> {
            Ok(Self(self.0.try_clone()?))
        }

        /// The folder `name` in this one; none if nothing is there.
        ///
        /// # Errors
        /// If it is a link, or not a folder.
        pub fn enter(&self, name: &str) -> Result<Option<Self>> {
            match fs::openat(&self.0, name, FOLDER | OFlags::NOFOLLOW, Mode::empty()) {
                Ok(folder) => Ok(Some(Self(folder))),
                Err(Errno::NOENT) => Ok(None),
                Err(error) => Err(error.into()),
            }
        }

        /// Enters the folder `name`, and makes it first if it is missing.
        pub(in super::super) fn make(&self, name: &str) -> Result<Self> {
            match fs::mkdirat(&self.0, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            Ok(Self(fs::openat(&self.0, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?))
        }

        pub(super) fn kind_here(&self, name: &str) -> Result<Option<Kind>> {
            let about = match fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(about) => about,
                Err(Errno::NOENT) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            Ok(Some(match FileType::from_raw_mode(about.st_mode) {
                #[allow(clippy::unnecessary_cast, reason = "of other types on other systems")]
                FileType::RegularFile => Kind::File((about.st_dev as u128) << 64 | about.st_ino as u128),
                FileType::Directory => Kind::Folder,
                FileType::Symlink => Kind::Other("a link"),
                FileType::Fifo => Kind::Other("a pipe"),
                _ => Kind::Other("a socket or device"),
            }))
        }

        /// The names in this folder.
        ///
        /// # Errors
        /// If it cannot be read.
        pub fn names(&self) -> Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in Dir::read_from(&self.0)? {
                // Names that are not UTF-8 are skipped: this program writes none.
                let name = entry?.file_name().to_str().map(str::to_owned).unwrap_or_default();
                if !matches!(&*name, "" | "." | "..") {
                    names.push(name);
                }
            }
            Ok(names)
        }

        pub(super) fn open_here(&self, name: &str) -> Result<File> {
            let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            Ok(fs::openat(&self.0, name, how, Mode::empty())?.into())
        }

        /// Links the file `name` of this folder into `to`, where the name must be free. On file systems without hard
        /// links, the file is moved instead.
        pub(in super::super) fn put(&self, name: &str, to: &Self) -> Result<()> {
            match fs::linkat(&self.0, name, &to.0, name, AtFlags::empty()) {
                Err(Errno::PERM | Errno::NOTSUP | Errno::NOSYS | Errno::MLINK | Errno::INVAL) => {
                    match to.kind_here(name)? {
                        None => self.replace(name, to),
                        Some(_) => Err(Errno::EXIST.into()),
                    }
                }
                done => Ok(done?),
            }
        }

        /// Moves the file `name` of this folder to `to`, and replaces a file of that name there.
        pub(in super::super) fn replace(&self, name: &str, to: &Self) -> Result<()> {
            Ok(fs::renameat(&self.0, name, &to.0, name)?)
        }

        pub(in super::super) fn remove(&self, name: &str) -> Result<()> {
            Ok(fs::unlinkat(&self.0, name, AtFlags::empty())?)
        }

        /// Removes the folder `name` if it is empty.
        pub(in super::super) fn remove_empty(&self, name: &str) -> Result<()> {
            Ok(fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
        }
    }
}

#[cfg(not(unix))]
mod paths {
    use std::fs::{self, File};
    use std::io::{Error, ErrorKind, Result};
    use std::path::{Path, PathBuf};

    use super::Kind;

    /// A folder by its path. Links are refused, but a link that appears between check and use is not noticed.
    pub struct Folder(PathBuf);

    impl Folder {
        pub(in super::super) fn open(path: &Path) -> Result<Self> {
            fs::read_dir(path).map(|_| Self(path.to_owned()))
        }

        pub(super) fn again(&self) -> Result<Self> {
            Ok(Self(self.0.clone()))
        }

        /// The folder `name` in this one; none if nothing is there.
        ///
        /// # Errors
        /// If it is a link, or not a folder.
        pub fn enter(&self, name: &str) -> Result<Option<Self>> {
            match self.kind_here(name)? {
                None => Ok(None),
                Some(Kind::Folder) => Ok(Some(Self(self.0.join(name)))),
                Some(_) => Err(Error::from(ErrorKind::NotADirectory)),
            }
        }

        pub(in super::super) fn make(&self, name: &str) -> Result<Self> {
            if self.kind_here(name)?.is_none() {
                fs::create_dir(self.0.join(name))?;
            }
            self.enter(name)?.ok_or_else(|| Error::from(ErrorKind::NotFound))
        }

        pub(super) fn kind_here(&self, name: &str) -> Result<Option<Kind>> {
            match fs::symlink_metadata(self.0.join(name)) {
                Ok(about) if about.is_dir() => Ok(Some(Kind::Folder)),
                Ok(about) if about.is_file() => Ok(Some(Kind::File(0))),
                Ok(_) => Ok(Some(Kind::Other("a link"))),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        }

        /// The names in this folder.
        ///
        /// # Errors
        /// If it cannot be read.
        pub fn names(&self) -> Result<Vec<String>> {
            let names = fs::read_dir(&self.0)?.map(|entry| entry.map(|entry| entry.file_name()));
            names.map(|name| name.map(|name| name.into_string().unwrap_or_default())).collect()
        }

        pub(super) fn open_here(&self, name: &str) -> Result<File> {
            File::open(self.0.join(name))
        }

        pub(in super::super) fn put(&self, name: &str, to: &Self) -> Result<()> {
            match to.kind_here(name)? {
                None => self.replace(name, to),
                Some(_) => Err(Error::from(ErrorKind::AlreadyExists)),
            }
        }

        pub(in super::super) fn replace(&self, name: &str, to: &Self) -> Result<()> {
            fs::rename(self.0.join(name), to.0.join(name))
        }

        pub(in super::super) fn remove(&self, name: &str) -> Result<()> {
            fs::remove_file(self.0.join(name))
        }

        pub(in super::super) fn remove_empty(&self, name: &str) -> Result<()> {
            fs::remove_dir(self.0.join(name))
        }
    }
}
