#ifndef SERVER_PROGRAM_H
#define SERVER_PROGRAM_H

/* The program: `ropewalk COMMAND ...`. Returns the exit code: 0, or 1 with a sentence on stderr. */
int program_main(int argc, char **argv);

#endif
