#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

enum { BUFFER_SIZE = 1 << 20 };

static int64_t fault_after = -1; /* -1: not read from the environment yet; 0: off */
static bool fault_crash;

void file_fault(int64_t after, bool crash) {
    fault_after = after;
    fault_crash = crash;
}

/* True when this operation is the one that a test wants to fail. */
static bool faulty(void) {
    if (fault_after < 0) {
        const char *setting = getenv("BERTH_FAULT");
        fault_after = setting ? atoll(setting) : 0;
        fault_crash = setting && strstr(setting, "crash");
    }
    if (fault_after == 0 || --fault_after > 0)
        return false;
    if (fault_crash)
        _exit(137);
    errno = ENOSPC;
    return true;
}

bool file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

bool folder_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

status file_size(const char *path, int64_t *bytes) {
    struct stat info;
    if (stat(path, &info) != 0)
        return bad_input("%s: %s", path, strerror(errno));
    *bytes = info.st_size;
    return OK;
}

status file_open_read(const char *path, int *descriptor) {
    if (folder_exists(path))
        return bad_input("%s: is a folder, expected a file", path);
    *descriptor = open(path, O_RDONLY | O_CLOEXEC);
    return *descriptor >= 0 ? OK : bad_input("%s: cannot open: %s", path, strerror(errno));
}

status file_read(const char *path, struct text *out) {
    int descriptor;
    TRY(file_open_read(path, &descriptor));
    char *chunk = xmalloc(BUFFER_SIZE);
    ssize_t got;
    while ((got = read(descriptor, chunk, BUFFER_SIZE)) > 0 || (got < 0 && errno == EINTR))
        if (got > 0)
            text_append(out, chunk, (size_t)got);
    int error = errno;
    free(chunk);
    close(descriptor);
    if (got < 0)
        return failed("%s: cannot read: %s", path, strerror(error));
    text_append(out, "", 0);
    return OK;
}

status file_read_at(int descriptor, const char *path, int64_t offset, void *bytes, size_t count) {
    char *to = bytes;
    while (count) {
        ssize_t got = pread(descriptor, to, count, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return failed("%s: cannot read: %s", path, strerror(errno));
        if (got == 0)
            return bad_input("%s: the file ends at byte %lld, expected %zu bytes more", path, (long long)offset, count);
        to += got;
        offset += got;
        count -= (size_t)got;
    }
    return OK;
}

status file_create(struct file_out *file, const char *path) {
    struct stat old;
    *file = (struct file_out){.descriptor = -1};
    if (stat(path, &old) == 0 && !S_ISREG(old.st_mode)) /* a rename would replace a device: /dev/null, /dev/stdout */
        return bad_input("%s: is there and not a file, expected the name of a file to write", path);
    *file = (struct file_out){.path = xstrdup(path), .temporary = xasprintf("%s.tmp", path), .descriptor = -1};
    file->descriptor = faulty() ? -1 : open(file->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file->descriptor < 0) {
        status code = failed("%s: cannot create: %s", path, strerror(errno));
        file_abandon(file);
        return code;
    }
    file->buffer = xmalloc(BUFFER_SIZE);
    return OK;
}

status file_append(int descriptor, const char *path, const void *bytes, size_t count) {
    const char *from = bytes;
    if (count && faulty())
        return failed("%s: cannot write: %s", path, strerror(errno));
    while (count) {
        ssize_t put = write(descriptor, from, count);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return failed("%s: cannot write: %s", path, strerror(errno));
        from += put;
        count -= (size_t)put;
    }
    return OK;
}

static status write_out(struct file_out *file, const char *bytes, size_t count) {
    return file_append(file->descriptor, file->path, bytes, count);
}

status file_write(struct file_out *file, const void *bytes, size_t count) {
    file->offset += (int64_t)count;
    bool large = count > BUFFER_SIZE / 2; /* written directly, after what is buffered */
    if (large || file->used + count > BUFFER_SIZE) {
        TRY(write_out(file, file->buffer, file->used));
        file->used = 0;
    }
    if (large)
        return write_out(file, bytes, count);
    memcpy(file->buffer + file->used, bytes, count);
    file->used += count;
    return OK;
}

static void file_done(struct file_out *file) {
    free(file->buffer);
    free(file->path);
    free(file->temporary);
    *file = (struct file_out){.descriptor = -1};
}

status file_commit(struct file_out *file) {
    status code = write_out(file, file->buffer, file->used);
    if (code == OK)
        code = file_flush(file->descriptor, file->path);
    if (code == OK)
        code = file_rename(file->temporary, file->path);
    if (code != OK) {
        file_abandon(file);
        return code;
    }
    close(file->descriptor);
    file_done(file);
    return OK;
}

void file_abandon(struct file_out *file) {
    if (!file->path)
        return;
    if (file->descriptor >= 0) {
        close(file->descriptor);
        unlink(file->temporary);
    }
    file_done(file);
}

status file_write_all(const char *path, const void *bytes, size_t count) {
    struct file_out file;
    TRY(file_create(&file, path));
    status code = file_write(&file, bytes, count);
    if (code != OK) {
        file_abandon(&file);
        return code;
    }
    return file_commit(&file);
}

status file_open_append(const char *path, int64_t length, int *descriptor) {
    *descriptor = faulty() ? -1 : open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (*descriptor >= 0 && ftruncate(*descriptor, length) == 0 && lseek(*descriptor, length, SEEK_SET) == length)
        return OK;
    status code = failed("%s: cannot open for writing: %s", path, strerror(errno));
    if (*descriptor >= 0)
        close(*descriptor);
    *descriptor = -1;
    return code;
}

status file_flush(int descriptor, const char *path) {
    if (faulty() || fsync(descriptor) != 0)
        return failed("%s: cannot flush to disk: %s", path, strerror(errno));
    return OK;
}

status link_replace(const char *target, const char *path) {
    char *temporary = xasprintf("%s.tmp", path);
    status code = OK;
    unlink(temporary);
    if (faulty() || symlink(target, temporary) != 0)
        code = failed("%s: cannot create link: %s", path, strerror(errno));
    if (code == OK)
        code = file_rename(temporary, path);
    free(temporary);
    return code;
}

status folder_create(const char *path) {
    char *copy = xstrdup(path);
    int result = 0;
    for (char *c = copy + 1; result == 0; c++) {
        if (*c != '/' && *c)
            continue;
        char end = *c;
        *c = 0;
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            result = -1;
        *c = end;
        if (!end)
            break;
    }
    int error = errno;
    free(copy);
    if (result != 0)
        return failed("%s: cannot create folder: %s", path, strerror(error));
    return folder_exists(path) ? OK : failed("%s: exists and is not a folder", path);
}

status folder_sync(const char *path) {
    int descriptor = faulty() ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = descriptor < 0 ? -1 : fsync(descriptor);
    int error = errno;
    if (descriptor >= 0)
        close(descriptor);
    /* some file systems cannot flush a folder: nothing more can be done there */
    return result == 0 || error == EINVAL ? OK : failed("%s: cannot flush folder: %s", path, strerror(error));
}

status file_rename(const char *from, const char *to) {
    if (faulty() || rename(from, to) != 0)
        return failed("%s: cannot rename to %s: %s", from, to, strerror(errno));
    return OK;
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

status folder_list(const char *path, char ***names, int64_t *count) {
    *names = NULL;
    *count = 0;
    DIR *folder = opendir(path);
    if (!folder)
        return bad_input("%s: cannot list folder: %s", path, strerror(errno));
    int64_t capacity = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        GROW(*names, *count, capacity);
        (*names)[(*count)++] = xstrdup(entry->d_name);
    }
    closedir(folder);
    if (*count)
        qsort(*names, (size_t)*count, sizeof **names, by_bytes);
    return OK;
}

void names_free(char **names, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

status folder_remove(const char *path) {
    char **names;
    int64_t count;
    TRY(folder_list(path, &names, &count));
    status code = OK;
    for (int64_t i = 0; i < count && code == OK; i++) {
        char *inner = path_join(path, names[i]);
        struct stat info;
        if (lstat(inner, &info) == 0 && S_ISDIR(info.st_mode))
            code = folder_remove(inner);
        else if (unlink(inner) != 0)
            code = failed("%s: cannot remove: %s", inner, strerror(errno));
        free(inner);
    }
    names_free(names, count);
    if (code == OK && rmdir(path) != 0)
        code = failed("%s: cannot remove folder: %s", path, strerror(errno));
    return code;
}

char *path_join(const char *folder, const char *name) {
    size_t length = strlen(folder);
    return xasprintf("%s%s%s", folder, length && folder[length - 1] == '/' ? "" : "/", name);
}

const char *path_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
