// Everything a training program needs: #include <ddprun/ddprun.hpp>.
#pragma once

#include "ddprun/checkpoint.h"
#include "ddprun/context.h"
#include "ddprun/data_parallel.h"
#include "ddprun/error.h"
#include "ddprun/objects.h"
#include "ddprun/process_group.h"
#include "ddprun/sampler.h"
#include "ddprun/store.h"
