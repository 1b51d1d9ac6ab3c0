// Opened: a checkpoint, or a file of torch.save, whose contents are known and whose tensors are
// still on the disk. Free functions; failures throw Failed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker_lib/checkpoint/core/shards.h"
#include "worker_lib/checkpoint/file_outline.h"
#include "worker_lib/checkpoint/io.h"

namespace ddprun {

struct Opened {
  std::string name;  // the first file's
  std::uint64_t bytes = 0;
  std::vector<std::string> paths;
  std::vector<FileOutline> outlines;  // of each file
  // The contents of all files. Its storages are addresses in the outlines, without memory.
  StateArchive archive;
  std::optional<CheckpointDirectory> directory;  // nullopt: a file of torch.save
  CheckpointManifest manifest;                   // of a checkpoint

  // Returns the file that has these bytes; nullopt: they are in memory.
  std::optional<std::size_t> file_of(std::string_view bytes) const;
};

// Lists the steps. Refuses a path that is not a readable directory.
std::vector<std::int64_t> steps_of(const CheckpointDirectory& directory);
// Returns what is wrong with the files, without reading their bytes; empty: nothing.
std::string quick_look(const CheckpointDirectory& directory, const CheckpointManifest& manifest);
std::uint64_t bytes_of(const CheckpointManifest& manifest);

// Opens a directory's checkpoint of a step, or the newest complete one, or a file. Reads no
// tensor.
Opened open_any(const std::string& path, std::optional<std::int64_t> step = std::nullopt);

// Compares every byte with its SHA-256 (on all cores), or every record of a file with its CRC.
void verify(const Opened& opened);

// Receives a piece of a file, whose bytes may still turn out to be damaged.
using UsePiece = std::function<void(std::size_t file, std::uint64_t at, std::string_view piece)>;
// Does what verify() does, on one core, and passes the pieces on. Those of one file come in
// order. Of a file of torch.save only the records are passed on.
void read_verified(const Opened& opened, const UsePiece& use);

// Calls `use` for each piece of a part of a file. fd: of the file, if it is open.
void read_pieces(int fd, const std::string& path, std::uint64_t at, std::uint64_t bytes,
                 const std::function<void(std::string_view)>& use);
void read_pieces(const std::string& path, std::uint64_t at, std::uint64_t bytes,
                 const std::function<void(std::string_view)>& use);

}  // namespace ddprun
