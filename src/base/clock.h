#ifndef BERTH_BASE_CLOCK_H
#define BERTH_BASE_CLOCK_H

double clock_seconds(void); /* monotonic, for intervals */
double clock_unix(void);    /* seconds since 1970, for records */

#endif
