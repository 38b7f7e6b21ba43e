// What a GPU answers when it is asked for an attribute, by the runtime as by the driver.
#pragma once
#include <cuda.h>

#include "machine.hpp"

int attribute_of(const Gpu& gpu, int attribute);
