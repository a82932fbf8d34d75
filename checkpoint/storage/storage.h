// The Storage seam: where checkpoints live, as a tree of named objects below one root.
//
// POSIX directories (posix_storage.h), object stores (s3/s3_storage.h), and disks and memory of
// several hosts (runtime/checkpoint/tiers): an object is written once from start to end, becomes
// durable as a whole, and is read by ranges. Paths are relative to the root, with '/' between
// components and none of "", "." or "..". Implementations are thread-safe; one WritableFile is used
// by one thread at a time. Errors name the whole path. Every call may block for the time the
// storage takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "checkpoint/format/checksum.h"

namespace dtrain::checkpoint {

// The users who may read a file: its owner alone reads checkpoint state, everyone reads models.
enum class Access { kOwner, kEveryone };  // Modes 0600 and 0644 where there are modes.

// AppendHeld copies nothing that begins at a multiple of it.
inline constexpr size_t kHeldAlignment = 4096;

// A new file on which nothing relies yet. Dropping it without Finish leaves an unsynced file.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Appends all of `data`.
  virtual absl::Status Append(absl::Span<const std::byte> data) = 0;
  // The same for data that stays as it is until Sync or Finish has succeeded or the file is gone,
  // so that it need not be copied. To gain by it, it begins at a multiple of kHeldAlignment, in
  // memory and in the file.
  virtual absl::Status AppendHeld(absl::Span<const std::byte> data) { return Append(data); }
  // Whether it collects what it is given into blocks, so that small parts cost no more than large.
  virtual bool collects() const { return false; }
  // Nothing more is appended: what it has collected is on its way from here on, and not only when
  // Finish waits for it.
  virtual void EndAppending() {}
  // Makes what was appended durable and leaves the file open for more. After an error the file is
  // lost. Unimplemented where an object becomes durable only as a whole.
  virtual absl::Status Sync() {
    return absl::UnimplementedError("this storage cannot make a part of a file durable");
  }
  // Makes the content durable and closes the file. Its name is durable after
  // Storage::SyncDirectory of its folder. REQUIRES: called once, last.
  virtual absl::Status Finish() = 0;
};

// An open file for reading. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual uint64_t bytes() const = 0;
  // Fills all of `into` from `offset`; OutOfRange when the file ends before.
  virtual absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> into) const = 0;
  // Tells the storage that the next reads should come from the medium, not from a cache.
  virtual void DropCache() const {}
  // Tells the storage that each byte is read once, in whole blocks: a cache is of no use.
  virtual void PassCache() const {}
  // Tells the storage that the range will be read soon; what is beyond the end is left out.
  virtual void ReadAhead(uint64_t /*offset*/, uint64_t /*bytes*/) const {}
  // Whether many small reads of a range cost hardly more than one of all of it, because this host
  // caches it after ReadAhead. If not, each read may be a message to another host.
  virtual bool takes_small_reads() const { return false; }
  // Makes the bytes that are there durable: their writer may have died before it did.
  virtual absl::Status MakeDurable() const { return absl::OkStatus(); }
  // The checksums of the file's bytes, computed where they lie, so that they do not travel. No
  // value: they lie here, so the caller reads them itself.
  virtual absl::StatusOr<std::optional<FileChecksum>> FarChecksum(bool /*from_medium*/) const {
    return std::optional<FileChecksum>();
  }
};

// A file that a storage may hold several times, and the name of this copy for people.
struct FileCopy {
  std::unique_ptr<ReadableFile> file;
  std::string display_name;
};

class Storage {
 public:
  struct Entry {
    std::string name;
    bool is_directory = false;
    uint64_t bytes = 0;
  };

  virtual ~Storage() = default;

  // Creates `path` exclusively (AlreadyExists otherwise) with room for `bytes_expected`, so that a
  // full disk is known before the first byte is written. ResourceExhausted: no room. An object
  // store looks for an object of the name, and cannot guard against one that appears until Finish.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> CreateFile(const std::string& path,
                                                                   uint64_t bytes_expected,
                                                                   Access access) = 0;
  // Opens a regular file; symbolic links are refused anywhere below the root.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> OpenFile(const std::string& path) = 0;

  // Makes `content` appear at `path` whole, durable and only if nothing is there (AlreadyExists
  // otherwise): the commit. After any other error the caller reads `path` to learn whether it
  // succeeded.
  virtual absl::Status Publish(const std::string& path, absl::string_view content) = 0;
  // Like Publish, but replaces an existing object. For hints only.
  virtual absl::Status Replace(const std::string& path, absl::string_view content) = 0;
  // Makes the finished file `from` appear at `to`, in the same folder, whole and durably, and in
  // place of what is there. Unimplemented where files have no names that can change.
  virtual absl::Status MoveFile(const std::string& /*from*/, const std::string& /*to*/) {
    return absl::UnimplementedError("this storage cannot give a file another name");
  }

  // Creates the folder and its missing parents, durably; OK when it exists.
  virtual absl::Status MakeDirectory(const std::string& path) = 0;
  // The same for several, whose names may be durable only after SyncParents of the same paths.
  virtual absl::Status MakeDirectories(absl::Span<const std::string> paths);
  virtual absl::Status SyncParents(absl::Span<const std::string> /*paths*/) {
    return absl::OkStatus();
  }
  // Makes creations and removals in the folder durable. "" is the root.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // The folder's entries, sorted by name; links and special files are left out. NotFound: no
  // folder.
  virtual absl::StatusOr<std::vector<Entry>> List(const std::string& path) = 0;
  virtual absl::Status RemoveFile(const std::string& path) = 0;
  // Removes an empty folder.
  virtual absl::Status RemoveDirectory(const std::string& path) = 0;
  // Removes what writers that died left behind and List does not show, as unfinished uploads of an
  // object store, of the paths that `is_stale` accepts. Goes on after an error and returns the
  // first.
  virtual absl::Status RemoveUnfinished(
      absl::FunctionRef<bool(const std::string& path)> /*is_stale*/) {
    return absl::OkStatus();
  }

  // Where the storage holds several copies of a file, as on several hosts, and the one that
  // OpenFile gives is damaged: removes it, so that OpenFile gives the next one. False: there is no
  // other copy, and nothing is removed.
  virtual absl::StatusOr<bool> DropDamaged(const std::string& /*path*/) { return false; }
  // Opens the copy with this number, from 0 on, wherever OpenFile would look, for a format in which
  // several may count. OutOfRange: there are fewer.
  virtual absl::StatusOr<FileCopy> OpenCopy(const std::string& path, size_t copy);
  // Where all copies are on one machine that may be lost: makes one on another.
  virtual absl::Status KeepCopies(const std::string& /*path*/) { return absl::OkStatus(); }
  // Whether a file may ever have several copies. Then a damaged file is read once more as a whole
  // to find a copy that is not.
  virtual bool may_hold_copies() const { return false; }

  // Where the file lies on another machine that reaches `to` itself: has it copied straight there,
  // as a new file, and gives the checksums of what was copied. No value: the caller copies it.
  virtual absl::StatusOr<std::optional<FileChecksum>> SendFile(const std::string& /*path*/,
                                                               Access /*access*/, Storage& /*to*/) {
    return std::optional<FileChecksum>();
  }

  // Whether the system itself reads far ahead of a reader that goes forwards through an open file.
  // It then does so in pages that grow, while ReadAhead asks for the smallest ones, each of which
  // takes time in the system and in the disk of a virtual machine.
  virtual bool reads_ahead() const { return false; }
  // So many waits until files are durable end sooner side by side than one after the other.
  virtual size_t syncs_at_once() const { return 1; }
  // Machines whose disks hold the files, so that several can be read at once.
  virtual size_t hosts() const { return 1; }
  // Bytes that this process may still write; none: unknown, or without a limit.
  virtual std::optional<uint64_t> FreeBytes() { return std::nullopt; }
  // Writes, makes durable and removes a file of the kind that a save writes, so that what a save
  // would fail for is known before. Gives what makes writes slower here than they could be, as a
  // text for people; "" for nothing.
  virtual absl::StatusOr<std::string> Probe() { return std::string(); }

  // `path` in the form for people and messages: "/data/run1/checkpoints/latest".
  virtual std::string DisplayName(const std::string& path) const = 0;
};

// Storage::Publish and Replace write their content under this prefix first; names that start with
// it are left behind only by a crash and mean nothing.
inline constexpr char kTemporaryPrefix[] = ".tmp-";

// The whole of a small file; ResourceExhausted when it is longer than `bytes_max`.
absl::StatusOr<std::string> ReadSmallFile(Storage& storage, const std::string& path,
                                          uint64_t bytes_max);

// Removes `path` and everything below it; OK when it is not there. Goes on after an error and
// returns the first.
absl::Status RemoveTree(Storage& storage, const std::string& path);

// ResourceExhausted unless `storage` has room for `bytes`; it names both numbers and `what` takes
// them. OK where the room is not known.
absl::Status CheckRoom(Storage& storage, uint64_t bytes, const std::string& what);

}  // namespace dtrain::checkpoint
