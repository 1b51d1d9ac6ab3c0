#include "launcher/plan/exec_diagnosis.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/read_all.h"
#include "base/unique_fd.h"
#include "launcher/process/own_cgroup.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

// Returns the first bytes of a file; empty: it cannot be read.
std::string head_of(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string head(4096, '\0');
  const ssize_t size = file.valid() ? read_all(file.get(), head.data(), head.size()) : 0;
  head.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return head;
}

// Returns the program after "#!"; empty: there is no such line.
std::string interpreter_in(const std::string& head) {
  if (!head.starts_with("#!")) return "";
  const std::string line = head.substr(2, head.find('\n') - 2);
  const std::size_t begin = line.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return line.substr(begin, line.find_first_of(" \t", begin) - begin);
}

// Returns the name of the machine that an ELF file is built for.
std::string machine_name(unsigned machine) {
  constexpr std::array<std::pair<unsigned, const char*>, 7> kNames{{{EM_X86_64, "x86_64"},
                                                                    {EM_386, "i386"},
                                                                    {EM_AARCH64, "aarch64"},
                                                                    {EM_ARM, "arm"},
                                                                    {EM_PPC64, "ppc64"},
                                                                    {EM_RISCV, "riscv"},
                                                                    {EM_S390, "s390"}}};
  for (const auto& [number, name] : kNames) {
    if (number == machine) return name;
  }
  return "machine " + std::to_string(machine);
}

std::optional<Elf64_Ehdr> elf_header_in(const std::string& head) {
  Elf64_Ehdr header{};
  if (head.size() < sizeof header || !head.starts_with(ELFMAG)) return std::nullopt;
  std::memcpy(&header, head.data(), sizeof header);
  return header;
}

// Returns the loader that a 64-bit ELF file names; empty: none was found.
std::string loader_in(const std::string& head) {
  const std::optional<Elf64_Ehdr> elf = elf_header_in(head);
  if (!elf || elf->e_ident[EI_CLASS] != ELFCLASS64) return "";
  for (unsigned i = 0; i < elf->e_phnum; ++i) {
    Elf64_Phdr part{};
    const std::size_t at = elf->e_phoff + std::size_t{i} * elf->e_phentsize;
    if (at > head.size() || head.size() - at < sizeof part) break;
    std::memcpy(&part, head.data() + at, sizeof part);
    if (part.p_type != PT_INTERP) continue;
    if (part.p_offset >= head.size()) break;
    return std::string(head.c_str() + part.p_offset);
  }
  return "";
}

// Returns the first directory of a path that this process may not enter; empty: none.
std::string closed_directory_of(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    const std::string directory = path.substr(0, slash);
    if (access(directory.c_str(), F_OK) == 0 && access(directory.c_str(), X_OK) != 0) {
      return directory;
    }
  }
  return "";
}

std::string refusal_of(const std::string& path, int way) {
  if (const std::string closed = closed_directory_of(path); !closed.empty()) {
    return "its directory " + closed + " cannot be entered (Permission denied)";
  }
  struct stat info {};
  const bool is_there = stat(path.c_str(), &info) == 0;
  if (way == R_OK || !is_there) return "cannot be read: Permission denied";
  struct statvfs system {};
  if (statvfs(path.c_str(), &system) == 0 && (system.f_flag & ST_NOEXEC) != 0) {
    return "its file system is mounted noexec";
  }
  if ((info.st_mode & (S_IXUSR | S_IXGRP | S_IXOTH)) != 0) {
    return "not executable for this user";
  }
  return "not executable; chmod +x " + path;
}

}  // namespace

std::string path_from(const std::string& directory, const std::string& path) {
  return directory.empty() || path.starts_with('/') ? path : directory + "/" + path;
}

std::optional<std::string> trouble_with(const std::string& name, const std::string& directory,
                                        int way) {
  const std::string path = path_from(directory, name);
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) {
      return "no such file" + (path == name ? "" : " in " + directory) +
             did_you_mean(name, directory, way);
    }
    return errno == EACCES ? refusal_of(path, way) : errno_text(errno);
  }
  if (S_ISDIR(info.st_mode)) return "it is a directory; give the path of a file";
  if (access(path.c_str(), way) != 0) {
    return errno == EACCES ? refusal_of(path, way) : errno_text(errno);
  }
  if (way != X_OK) return std::nullopt;
  const std::string interpreter = interpreter_in(head_of(path));
  if (!interpreter.empty() && access(path_from(directory, interpreter).c_str(), F_OK) != 0) {
    return "its first line names the interpreter " + interpreter + ", which does not exist" +
           (interpreter.ends_with('\r') ? " (the line ends with CR LF; run dos2unix " + path + ")"
                                        : "");
  }
  return std::nullopt;
}

std::string exec_diagnosis(const std::string& name, const std::string& directory, int exec_errno) {
  const std::string path = path_from(directory, name);
  const std::string words = errno_text(exec_errno);
  const std::string head = head_of(path);
  switch (exec_errno) {
    case ENOENT: {
      const std::string loader = loader_in(head);
      if (!loader.empty() && access(loader.c_str(), F_OK) != 0) {
        return "its loader " + loader + " does not exist: the program was built for another system";
      }
      [[fallthrough]];
    }
    case EACCES: return trouble_with(name, directory, X_OK).value_or(words);
    case ENOEXEC: {
      if (const std::optional<Elf64_Ehdr> elf = elf_header_in(head)) {
        const std::optional<Elf64_Ehdr> own = elf_header_in(head_of("/proc/self/exe"));
        if (own && own->e_machine != elf->e_machine) {
          return words + ": the program was built for " + machine_name(elf->e_machine) +
                 ", but this machine is " + machine_name(own->e_machine);
        }
        return words + ": the file is damaged, or not a program";
      }
      if (head.empty()) return words + ": the file is empty";
      return words + ": a script needs a first line such as #!/bin/sh";
    }
    case ETXTBSY: return words + ": a process is writing to it";
    case E2BIG: return words + ": arguments and environment are too large together; see ulimit -s";
    default: return words;
  }
}

std::string did_you_mean(const std::string& path, const std::string& directory, int way) {
  constexpr std::array kFolders{
      "build", "bin", "out", "target", "dist", "cmake-build-release", "cmake-build-debug"};
  constexpr int kMaxDepth = 3;
  constexpr int kMaxEntries = 2000;
  const std::string name = fs::path(path).filename();
  if (name.empty() || name == "." || name == "..") return "";
  const auto is_usable = [&](const std::string& candidate) {
    struct stat info {};
    const std::string there = path_from(directory, candidate);
    return stat(there.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
           access(there.c_str(), way) == 0;
  };
  const auto text = [](const std::string& found) { return "; did you mean " + found + "?"; };
  const std::string here = way == X_OK ? "./" + name : name;
  if (is_usable(here)) return text(here);

  // Prefers the newest file, which is probably the one just built.
  std::string best;
  fs::file_time_type best_time = fs::file_time_type::min();
  int entries = 0;
  for (const std::string prefix : {"", "../"}) {
    for (const char* folder : kFolders) {
      const std::string root = prefix + folder;
      std::error_code error;
      fs::recursive_directory_iterator at(path_from(directory, root),
                                          fs::directory_options::skip_permission_denied, error);
      for (; !error && at != fs::end(at) && entries < kMaxEntries; at.increment(error)) {
        ++entries;
        if (at.depth() >= kMaxDepth || at->path().filename() == "CMakeFiles") {
          at.disable_recursion_pending();
        }
        if (at->path().filename() != name) continue;
        const std::string found =
            root + at->path().string().substr(path_from(directory, root).size());
        std::error_code no_time;
        const fs::file_time_type time = fs::last_write_time(at->path(), no_time);
        if (!is_usable(found) || (!best.empty() && time <= best_time)) continue;
        best = found;
        best_time = time;
      }
    }
    if (!best.empty()) return text(best);
  }
  return "";
}

std::string limits_of_processes() {
  std::string text;
  rlimit limit{};
  if (getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    text = "ulimit -u is " + std::to_string(limit.rlim_cur);
  }
  if (const std::string cgroup = full_pids_cgroup(); !cgroup.empty()) {
    text += (text.empty() ? "" : "; ") + cgroup;
  }
  return text;
}

}  // namespace ddprun
