// Reads the file of --config: a JSON object with any of ddprun's options.
//
//   {"nproc-per-node": 8, "max_restarts": 3, "standalone": true,
//    "program": "train.py", "args": ["--epochs", "10"]}
//
// Names are those of the command line, with - or _. Values are strings, numbers, true or false.
// An option that may be repeated can also have a list of them. Any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddprun {

struct ConfigFile {
  std::string path;                                       // as given
  std::map<std::string, std::vector<std::string>> texts;  // by the option's name, with dashes
  std::string program;                                    // empty: none
  std::vector<std::string> args;
};

// Parses the text of a config file. A kInvalidArgument error says what is wrong with it, and
// where.
Result<ConfigFile> parse_config_file(const std::string& path, const std::string& text);

// Reads and parses the file. Fails as parse_config_file(); also with kSystem if the file cannot
// be read, and kCorrupt if it is larger than a config file can be.
Result<ConfigFile> read_config_file(const std::string& path);

}  // namespace ddprun
