#ifndef MODEL_FORMATS_IQ4_TABLE_H
#define MODEL_FORMATS_IQ4_TABLE_H

#include <stdint.h>

/* The uneven grid of IQ4_NL and IQ4_XS. */
static const int8_t iq4_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

#endif
